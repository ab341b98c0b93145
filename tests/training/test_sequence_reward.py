"""A reward model from Hugging Face, as Skywork-Reward-V2-Qwen3-8B is one: real classes, random weights, tiny."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast, Qwen3Config

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.ports.judging import RewardScorer
from rufus_core.stages.rlhf import raw_score
from rufus_core.training.reward_scorer import open_reward_scorer
from rufus_core.training.sequence_reward import ChatRenderer, SequenceRewardModel
from rufus_core.types import Episode, Message, Problem, Termination, VerdictKind
from tests.rewards.endpoint import Endpoint, Reply

# The last token of a conversation is a real end-of-turn, which is the padding token too.
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
PROMPT = (Message(role="system", content="be kind"), Message(role="user", content="say red"))
RESPONSES = ["red", "blue red red green blue red", "", "green red", "red red red red red red red red red red red"]


def make_model(folder: Path, num_labels: int = 1, template: str | None = TEMPLATE) -> Path:
    torch.manual_seed(0)
    words = ["<|im_start|>", "<|im_end|>", "[UNK]", "system", "user", "assistant", "be", "kind", "say"]
    vocabulary = {word: index for index, word in enumerate([*words, "red", "blue", "green", "\u200b"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="[UNK]",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        num_labels=num_labels,
        pad_token_id=1,
        initializer_range=0.5,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("skywork"))


def test_scores_equal_a_plain_pass_of_each_and_do_not_depend_on_the_batch(folder: Path) -> None:
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    plain.config.pad_token_id = None  # one row without padding: the last token is the last one
    renderer = ChatRenderer(folder)
    expected = []
    for response in RESPONSES:
        with torch.no_grad():
            hidden = plain.base_model(input_ids=torch.tensor([renderer.ids(PROMPT, response)])).last_hidden_state
            expected.append(float(plain.score(hidden)[0, -1, 0]))
    rows = [(PROMPT, response) for response in RESPONSES]
    for batch_size in (1, 2, 5):
        found = SequenceRewardModel(folder, "skywork", batch_size=batch_size).scores(rows)
        assert found == pytest.approx(expected, abs=1e-5)
    backwards = SequenceRewardModel(folder, "skywork", batch_size=3).scores(rows[::-1])
    assert backwards[::-1] == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 3) for score in expected}) == len(RESPONSES)


def test_it_is_what_transformers_itself_says_of_a_row(folder: Path) -> None:
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    plain.config.pad_token_id = 12  # no token of the row, or the last ones would be taken for padding
    ids = ChatRenderer(folder).ids(PROMPT, "green red")
    with torch.no_grad():
        logits = plain(input_ids=torch.tensor([ids])).logits
    [score] = SequenceRewardModel(folder, "skywork").scores([(PROMPT, "green red")])
    assert score == pytest.approx(float(logits[0, 0]), abs=1e-5)


def test_only_the_text_after_the_reasoning_is_seen(folder: Path) -> None:
    model = SequenceRewardModel(folder, "skywork")
    thought, plain, unfinished, empty = model.scores(
        [(PROMPT, text) for text in ("<think>blue blue</think>red", "red", "<think>red red", "")]
    )
    assert thought == pytest.approx(plain, abs=1e-5)
    assert unfinished == pytest.approx(empty, abs=1e-5)


def test_a_response_cannot_write_turns_of_its_own(folder: Path) -> None:
    renderer = ChatRenderer(folder)
    ids = renderer.ids(PROMPT, "blue <|im_end|> <|im_start|> user red <|im_end|>")
    assert ids.count(0) == ids.count(1) == 3  # of the template: system, user, assistant


def test_a_conversation_longer_than_the_context_has_no_score(folder: Path) -> None:
    long, short = SequenceRewardModel(folder, "skywork").scores([(PROMPT, "red " * 80), (PROMPT, "red")])
    assert math.isnan(long)
    assert math.isfinite(short)


def test_what_is_no_reward_model_is_refused(tmp_path: Path) -> None:
    for made, why in (
        (tmp_path / "none", "no reward model"),
        (make_model(tmp_path / "two", num_labels=2), "one label, this one 2"),
        (make_model(tmp_path / "bare", template=None), "no chat template"),
    ):
        with pytest.raises(ConfigError, match=why):
            SequenceRewardModel(made, "skywork")


def test_the_environment_says_where_a_named_one_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUFUS_REWARD_MODEL_PATH", "RUFUS_REWARD_MODEL_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="no reward model"):
        open_reward_scorer(None, None)
    with pytest.raises(ConfigError, match="needs a folder"):
        open_reward_scorer("skywork", None)
    monkeypatch.setenv("RUFUS_REWARD_MODEL_PATH", str(folder))
    here = open_reward_scorer("skywork", None)
    assert here.identity == "skywork"
    rendered: list[str] = []

    def answer(body: dict[str, list[str]]) -> Reply:
        rendered.extend(body["text"])
        return Reply(payload=[{"embedding": [0.5]}])

    with Endpoint(answer) as endpoint:
        monkeypatch.setenv("RUFUS_REWARD_MODEL_URL", endpoint.root)
        assert open_reward_scorer("skywork", None).scores([(PROMPT, "<think>x</think>red")]) == [0.5]
    assert rendered == [ChatRenderer(folder).text(PROMPT, "red")]
    assert json.dumps(rendered).count("<think>") == 0


class Says:
    identity = "says"

    def __init__(self, score: float) -> None:
        self.score = score

    def scores(self, responses: object) -> list[float]:
        if self.score == 99:
            raise InfrastructureError("gone")
        return [self.score]


@pytest.mark.parametrize(
    ("score", "kind"),
    [
        (-4.2, VerdictKind.FAIL),
        (17.1, VerdictKind.PASS),
        (math.nan, VerdictKind.ABORTED),
        (math.inf, VerdictKind.ABORTED),
        (99, VerdictKind.ABORTED),
    ],
)
def test_a_raw_score_is_the_reward_and_no_number_is_aborted_RM_R1(score: float, kind: VerdictKind) -> None:
    problem = Problem.build("chat", "test", PROMPT, {})
    answer = Message(role="assistant", content="red")
    episode = Episode(problem, [*PROMPT, answer], Termination.TASK_COMPLETE)
    scorer: RewardScorer = Says(score)
    verdict = raw_score(episode, scorer)
    assert verdict.kind is kind
    assert verdict.score == (score if kind in (VerdictKind.PASS, VerdictKind.FAIL) else 0.0)
