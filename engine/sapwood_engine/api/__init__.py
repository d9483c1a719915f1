"""HTTP shell: OpenAI schemas in, `service.client` calls, JSON and server-sent events out."""
