// Server-sent events out of a response's body.

/** Yield the JSON of each event of `response` but `[DONE]`, to its end. An error event is yielded as it is. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const blocks = held.split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      const payload = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (payload && payload !== "[DONE]") yield JSON.parse(payload);
    }
  }
}
