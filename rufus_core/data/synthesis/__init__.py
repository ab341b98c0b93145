"""Multi-turn instruction following (IF-D4 to IF-D7): dialogues with a user who tries to make the assistant fail."""
