"""SGLang as rollout engine: servers, what is said to them, and how they get the trainer's weights."""
