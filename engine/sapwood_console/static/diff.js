// What happened in the tree between two looks at it. Pure.
//
// A node is known by its serial, which is never given twice. At a split the lower part keeps it and the upper part is
// new, so a new node that has an old one below it was split off; any other new node appeared. Edges never grow: a node
// with fewer tokens than before, those split off above it included, has lost its end.

/** All nodes of an answer of /ui/data/cache by serial, each with the serial of its parent (0: the namespace). */
export function nodesBySerial(snapshot) {
  const known = new Map();
  for (const { nodes } of snapshot.namespaces) {
    for (const node of nodes) {
      const above = node.parent === null ? 0 : nodes[node.parent].serial;
      known.set(node.serial, { serial: node.serial, above, numTokens: node.num_tokens, locks: node.lock_ref });
    }
  }
  return known;
}

/**
 * Events that lead from one answer to the next, as `{kind, serial, numTokens, …}`:
 * appeared, split (`upperTokens`, `lowerTokens`), locked, unlocked, evicted (`isWhole`: false where only its end went).
 *
 * What an answer that is cut (`truncated`) leaves out may be there all the same: then nothing is said to appear after
 * such a one, or to be evicted in such a one.
 */
export function diff(before, after) {
  const old = nodesBySerial(before);
  const now = nodesBySerial(after);
  const events = [];
  const splitOff = new Map(); // serial of a new upper part -> the old node below it
  const tokensAbove = new Map(); // serial of an old node -> tokens split off above it
  for (const node of now.values()) {
    if (old.has(node.serial)) followSplits(node, old, now, splitOff, tokensAbove);
  }
  for (const node of now.values()) {
    const was = old.get(node.serial);
    if (was !== undefined) {
      const lost = was.numTokens - node.numTokens - (tokensAbove.get(node.serial) ?? 0);
      if (lost > 0) events.push({ kind: "evicted", serial: node.serial, numTokens: lost, isWhole: false });
      turned(events, node, was.locks);
      continue;
    }
    const lower = splitOff.get(node.serial);
    if (lower !== undefined) {
      const { serial, numTokens } = node;
      events.push({ kind: "split", serial, numTokens, upperTokens: numTokens, lowerTokens: lower.numTokens, lower: lower.serial });
      turned(events, node, old.get(lower.serial).locks);
    } else if (!before.truncated) {
      events.push({ kind: "appeared", serial: node.serial, numTokens: node.numTokens });
      turned(events, node, 0);
    }
  }
  if (!after.truncated) {
    for (const was of old.values()) {
      if (!now.has(was.serial)) events.push({ kind: "evicted", serial: was.serial, numTokens: was.numTokens, isWhole: true });
    }
  }
  return events;
}

/** Walk up from an old node over the new ones that were split off above it. */
function followSplits(node, old, now, splitOff, tokensAbove) {
  let tokens = 0;
  let above = now.get(node.above);
  while (above !== undefined && !old.has(above.serial)) {
    if (!splitOff.has(above.serial)) {
      splitOff.set(above.serial, node);
      tokens += above.numTokens;
    }
    above = now.get(above.above);
  }
  tokensAbove.set(node.serial, tokens);
}

function turned(events, node, locksBefore) {
  const { serial, numTokens } = node;
  if (node.locks > 0 && locksBefore === 0) events.push({ kind: "locked", serial, numTokens });
  if (node.locks === 0 && locksBefore > 0) events.push({ kind: "unlocked", serial, numTokens });
}
