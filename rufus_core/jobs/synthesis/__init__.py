"""Makes instruction-following problems with models: dialogues are held, checkers written, and the filters applied."""
