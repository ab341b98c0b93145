"""A server on loopback: SGLang's native protocol and OpenAI's chat completions over the embedded engine."""
