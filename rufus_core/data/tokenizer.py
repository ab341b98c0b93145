"""The miniature's tokenizer: GLM's special tokens, whole words, single characters, and bytes for everything else."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from importlib import resources

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (
    END_OF_TEXT,
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)  # fmt: skip
MARKER_TOKENS = (
    "<think>", "</think>", "<tools>", "</tools>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>",
)  # fmt: skip
_PIECE = r"\p{L}+|\p{N}|\s|."  # a word, or one character
_WORD = re.compile(r"[A-Za-z]{2,}")


def count_words(texts: Iterable[str], most: int, at_least: int = 5) -> list[str]:
    """The `most` most frequent words of two letters or more that are seen `at_least` times, ties by alphabet."""
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    common = [(word, count) for word, count in counts.items() if count >= at_least]
    return [word for word, _ in sorted(common, key=lambda item: (-item[1], item[0]))[:most]]


def build_tokenizer(words: Iterable[str], context_tokens: int) -> PreTrainedTokenizerFast:
    """A tokenizer in which each of `words` is one token; other words become letters, other characters UTF-8 bytes.

    Any text makes the round trip. Spaces are tokens of their own, so that a word keeps its id wherever it stands.
    """
    characters = [c for c in string.printable if c not in "\x0b\x0c\r"]
    pieces = dict.fromkeys([*characters, *words])
    # Scores only rank the ways to cut one word: as a whole, else by characters, else by bytes.
    vocabulary = [(END_OF_TEXT, 0.0)]
    vocabulary += [(piece, -1.0) for piece in pieces]
    vocabulary += [(f"<0x{byte:02X}>", -10.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    )
    fast.add_special_tokens({"additional_special_tokens": list(SPECIAL_TOKENS[1:])})
    fast.add_tokens(list(MARKER_TOKENS), special_tokens=False)
    fast.chat_template = resources.files("rufus_core.data.templates").joinpath("glm_miniature.jinja").read_text()
    return fast
