"""Names of spans and of their attributes, in one place.

Those that begin with ``gen_ai``, ``http``, ``server``, ``service``, ``url`` and ``error`` are OpenTelemetry's, as of
the semantic conventions below; a test compares them with the package of that version. The rest are ours.
"""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The semantic conventions that the names follow; those of ``gen_ai`` are not stable yet."""

# --- spans

ROUTE = "gateway.route"
TOKENIZE = "tokenize"
QUEUE = "queue"
MATCH = "kv.match"
PREFILL = "prefill"
DECODE = "decode"

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""Path -> the engine's operation; its span is called after it and the model."""

# --- attributes of the conventions

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_RESEND_COUNT = "http.request.resend_count"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE_ID = "service.instance.id"

# --- attributes of ours

REQUEST_ID = "sapwood.request_id"
ROUTE_SERVICE = "sapwood.route.service"
"""``namespace/name`` of the InferenceService."""
ROUTE_CANDIDATES = "sapwood.route.candidates"
"""Replicas that could have taken the request."""
ROUTE_REASON = "sapwood.route.reason"
ROUTE_REPLICA = "sapwood.route.replica"
ROUTE_MATCHED_TOKENS = "sapwood.route.matched_tokens"
"""Prompt tokens that the replica was expected to have in its cache."""
ROUTE_QUEUE_SECONDS = "sapwood.route.queue_seconds"
NUM_PROMPTS = "sapwood.prompts"
CHOICE = "sapwood.choice"
CACHED_TOKENS = "sapwood.cached_tokens"
COMPUTED_TOKENS = "sapwood.computed_tokens"
CHUNKS = "sapwood.chunks"
"""Steps that a prompt was computed in."""
OUTPUT_TOKENS = "sapwood.output_tokens"
PREEMPTIONS = "sapwood.preemptions"
DETOKENIZE_SECONDS = "sapwood.detokenize_seconds"
"""From tokens to text, all of a choice's together: a little after each token, so no span could show it."""
