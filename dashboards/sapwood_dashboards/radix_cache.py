"""Radix cache: what is found, what goes and why, and what another capacity would find."""

from __future__ import annotations

from sapwood_contract.metrics import MRC_CAPACITIES
from sapwood_dashboards.panels import Dashboard, Limit, Panel, Query, Row, hit_ratio, percentiles, rate

_POD = "{{pod}}"

_HITS = Row(
    "Hits",
    (
        Panel(
            title="Hit ratio",
            description=(
                "Share of prompt tokens whose KV was there. It is prompts that decide: look at the curve below before"
                " you add memory."
            ),
            queries=(hit_ratio(legend="all"), hit_ratio("pod", legend=_POD)),
            unit="percentunit",
            runbook="CacheThrashing",
        ),
        Panel(
            title="Prompt tokens by source",
            description="device: found. compute: had to be computed. recompute: computed again after a preemption.",
            queries=(rate("sapwood_prompt_tokens_total", matchers="@pod", by="source"),),
            unit="ops",
            kind="stacked",
        ),
        Panel(
            title="KV memory",
            description=(
                "Tokens by state; they sum to the capacity. active: of running requests. evictable: cached, and free"
                " for who needs room."
            ),
            queries=(Query("sum by (state) (sapwood_kv_tokens{@pod})", "{{state}}"),),
            kind="stacked",
        ),
    ),
)

_CURVE = Row(
    "What another capacity would find",
    (
        Panel(
            title="Miss-ratio curve: hit ratio by capacity",
            description=(
                "What the hit ratio would be with half the KV memory, today's, and more; mean of the replicas. Steep to"
                " the right of 1x: memory pays. Flat: it does not, whatever the hit ratio. Empty while too little is"
                " known."
            ),
            queries=tuple(
                Query(f'avg(sapwood_mrc_hit_ratio{{@pod,capacity="{capacity}"}} >= 0)', capacity)
                for capacity in MRC_CAPACITIES
            ),
            unit="percentunit",
            kind="bars",
            runbook="CacheThrashing",
        ),
        Panel(
            title="The curve over time",
            description="The gap between 1x and the lines above it is what more memory would win.",
            queries=(Query("avg by (capacity) (sapwood_mrc_hit_ratio{@pod} >= 0)", "{{capacity}}"),),
            unit="percentunit",
        ),
        Panel(
            title="Working set and capacity",
            description=(
                "Tokens that must be held for nine tenths of all hits that there are, and what there is room for. Above"
                " the capacity: more memory, or replicas with prefix affinity."
            ),
            queries=(
                Query("sum by (pod) (sapwood_working_set_tokens{@pod} >= 0)", "working set {{pod}}"),
                Query("sum by (pod) (sapwood_kv_capacity_tokens{@pod})", "capacity {{pod}}"),
            ),
        ),
        Panel(
            title="Regret",
            description=(
                "Share of the prompt tokens computed that were evicted of late: twice the capacity would have kept"
                " them. Above a fifth for long the alert fires."
            ),
            queries=(
                Query(
                    "sum(rate(sapwood_regret_tokens_total{@pod}[$__rate_interval]))"
                    ' / (sum(rate(sapwood_prompt_tokens_total{@pod,source="compute"}[$__rate_interval])) > 0)',
                    "regret",
                ),
            ),
            unit="percentunit",
            limits=(Limit(value=0.2),),
            runbook="CacheThrashing",
        ),
        Panel(
            title="What the curve rests on",
            description="Page uses counted a second. Few: read the curve over a longer time before you act on it.",
            queries=(rate("sapwood_mrc_samples_total", matchers="@pod", by="pod"),),
            unit="ops",
        ),
        Panel(
            title="Share of pages followed",
            description="By --mrc-sample-rate. The curve is as exact with a share as with all, given enough page uses.",
            queries=(Query("min by (pod) (sapwood_mrc_sample_rate{@pod})", "{{pod}}"),),
            unit="percentunit",
            kind="stat",
        ),
    ),
)

_EVICTION = Row(
    "What goes",
    (
        Panel(
            title="Evicted tokens",
            description="capacity: for room. ttl: too old. flush and admin: asked for.",
            queries=(rate("sapwood_evicted_tokens_total", matchers="@pod", by="reason"),),
            unit="ops",
            kind="stacked",
            runbook="CacheThrashing",
        ),
        Panel(
            title="Idle before they went, and before they were used again",
            description=(
                "What is evicted should have been idle for longer than what is used again. The other way round, the"
                " cache forgets what is about to be asked for."
            ),
            queries=(
                *percentiles("sapwood_evicted_idle_seconds", matchers="@pod", shares=(0.5,), name="evicted after, p50"),
                *percentiles("sapwood_reuse_gap_seconds", matchers="@pod", shares=(0.9,), name="used again after, p90"),
            ),
            unit="s",
            runbook="CacheThrashing",
        ),
        Panel(
            title="Radix tree",
            description="Nodes, those in use, and the longest path. Many nodes of few tokens: prompts share little.",
            queries=(
                Query("sum(sapwood_radix_nodes{@pod})", "nodes"),
                Query("sum(sapwood_radix_locked_nodes{@pod})", "in use"),
                Query("max(sapwood_radix_depth_max{@pod})", "longest path"),
            ),
        ),
        Panel(
            title="Failed integrity checks",
            description="Must be 0. An engine that counted one serves without its cache until it is started anew.",
            queries=(Query("sum by (pod) (sapwood_cache_invariant_failures_total{@pod})", _POD),),
            kind="stat",
            limits=(Limit(value=1),),
            runbook="CacheInvariantBroken",
            width=24,
        ),
    ),
)

RADIX_CACHE = Dashboard(
    uid="sapwood-radix-cache",
    title="Sapwood / Radix cache",
    description="What the prefix cache finds, what goes and why, and what another capacity would find.",
    subject="sapwood_build_info",
    rows=(_HITS, _CURVE, _EVICTION),
)
