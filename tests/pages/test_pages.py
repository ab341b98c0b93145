"""What a user sees and does in the pages of `rufus ui`, in a real browser. Waits are for what is shown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urljoin

import pytest
from mlflow import MlflowClient

from flows.artifacts import MLFLOW_PAGE, SHORT
from rufus_core.lineage import Record
from tests.flows.test_recipe import TITLES
from tests.pages import miniature
from tests.pages.conftest import SHOWN_MS, Pages, playwright

pytestmark = pytest.mark.slow

expect = playwright.expect
STAGE_ENDS = ("stages/sft/checkpoint", "stages/reasoning_rl/checkpoint")
RUN_MS = 240_000  # for a flow run to come to its end


def open_checkpoint(page: playwright.Page, pages: Pages) -> None:
    page.goto(f"{pages.mlflow}/#/experiments")
    page.get_by_role("link", name="recipe", exact=True).click()
    page.wait_for_url("**/experiments/*/**")
    experiment = page.url.split("/experiments/")[1].split("/")[0].split("?")[0]
    page.goto(f"{pages.mlflow}/#/experiments/{experiment}/models")
    page.get_by_role("link", name="stages-math-checkpoint").click()


def test_a_checkpoint_shows_its_parent_its_data_its_scores_and_its_training(
    page: playwright.Page, pages: Pages
) -> None:
    open_checkpoint(page, pages)
    checkpoint, base, data = (pages.records[name] for name in ("stages/math/checkpoint", "base", "data/math"))
    expect(page.get_by_text(checkpoint.digest)).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="parent: base")).to_contain_text(base.digest)
    expect(page.get_by_role("row").filter(has_text="data: data/math")).to_contain_text(data.digest)
    expect(page.get_by_role("link", name="stages/math/train by its title").first).to_be_visible()
    for metric, dataset, value in (("sums", "data/math", "0.75"), ("coding", "data/code", "0.25")):
        row = page.get_by_role("row").filter(has_text=metric).filter(has_text=dataset)
        expect(row).to_contain_text("scores/math by its title")
        expect(row).to_contain_text(value)
    page.get_by_role("link", name="base", exact=True).click()
    expect(page.get_by_text(base.digest)).to_be_visible()


def test_two_checkpoints_are_chosen_and_compared(page: playwright.Page, pages: Pages) -> None:
    page.goto(f"{pages.mlflow}/#/models/recipe")
    for alias in ("@ math", "@ base"):
        page.get_by_role("row").filter(has_text=alias).get_by_role("checkbox").check(force=True)  # shown on hovering
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_text("Comparing 2 Versions")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="algorithm.name")).to_contain_text("gspo")
    expect(page.get_by_role("row").filter(has_text="Run Name")).to_contain_text("stages/math/train")
    for metric, value in (("loss", "0.5"), ("reward", "0.3")):
        expect(page.get_by_role("row").filter(has=page.get_by_text(metric, exact=True))).to_contain_text(value)


def open_run(page: playwright.Page, pages: Pages, name: str, timeout: int = SHOWN_MS) -> None:
    page.goto(f"{pages.prefect}/runs")
    follow(page, page.get_by_role("link", name=name, exact=True).first, timeout)


def follow(page: playwright.Page, link: playwright.Locator, timeout: int = SHOWN_MS) -> None:
    """Go where a link of Prefect's leads. Its pages replace their own address while they load, which undoes a click."""
    page.goto(urljoin(page.url, link.get_attribute("href", timeout=timeout)))


def open_tab(page: playwright.Page, name: str) -> None:
    page.get_by_role("tablist").get_by_text(name, exact=True).click()


def test_a_flow_run_shows_its_steps(page: playwright.Page, pages: Pages) -> None:
    open_run(page, pages, "tiny on test")
    open_tab(page, "Task Runs")
    for title in TITLES:
        expect(steps(page, title, "Completed")).to_have_count(1)


def test_a_flow_run_leads_to_its_lineage_its_stage_table_its_store_and_mlflow(
    page: playwright.Page, pages: Pages
) -> None:
    def open_artifact(key: str) -> None:
        open_run(page, pages, "tiny on test")
        open_tab(page, "Artifacts")
        follow(page, page.get_by_role("link", name=key))

    ends = [pages.store.get(pages.outcome.steps[name].record_id or "") for name in ("base", "stages/math/train")]
    records = [record for record in ends if record is not None]
    open_artifact("rufus-lineage")
    expect_lineage(page, records)
    open_artifact("rufus-stages")
    for record in records:
        expect(page.get_by_role("row").filter(has_text=record.digest[:SHORT])).to_contain_text(
            record.stage or record.kind
        )
    open_artifact("rufus-store")
    store = pages.store.root.absolute()
    expect(page.get_by_role("link", name=str(store))).to_have_attribute("href", store.as_uri())
    open_artifact("rufus-mlflow")
    expect(page.get_by_role("link", name="MLflow", exact=True)).to_have_attribute("href", MLFLOW_PAGE)


def expect_lineage(page: playwright.Page, checkpoints: Iterable[Record]) -> None:
    """The page shows each of them with its digest and those of its inputs, and nothing else as a checkpoint."""
    expect(page.get_by_role("heading", name="Lineage", exact=True)).to_be_visible()
    shown = [line.strip() for line in page.get_by_role("listitem").all_inner_texts()]
    assert [line for line in shown if line.startswith("digest: ")] == [f"digest: {each.digest}" for each in checkpoints]
    for each in checkpoints:
        assert f"all of it: rufus trace {each.digest[:SHORT]}" in shown
        for role, given in each.inputs.items():
            assert f"{role}: {given.record_id}, digest {given.digest[:SHORT]}" in shown


def steps(page: playwright.Page, title: str, state: str) -> playwright.Locator:
    """Task runs of this title in this state, as the tab lists them."""
    runs = page.locator(".task-run-list-item").filter(has=page.get_by_role("link", name=title, exact=True))
    return runs.filter(has=page.get_by_text(state, exact=True))


@pytest.mark.usefixtures("worker")
def test_a_run_that_failed_by_a_broken_file_is_mended_and_retried_and_makes_nothing_twice(
    page: playwright.Page, pages: Pages
) -> None:
    questions, profile = pages.home / "questions.jsonl", pages.home / "miniature.yaml"
    miniature.write_profile(profile)
    miniature.write_questions(questions, broken_line=3)
    start_deployed(
        page, pages, profile, f"stages.reasoning_rl.problems.sources=!replace {{mine: {{path: {questions}}}}}"
    )
    expect_state(page, "Failed")
    open_tab(page, "Details")
    page.get_by_text("See More").click()
    expect(page.get_by_text(f"data/reasoning_rl: {questions}:3: ")).to_be_visible()
    open_tab(page, "Task Runs")
    for name in miniature.MADE_FIRST:
        expect(steps(page, miniature.TITLES[name], "Completed")).to_have_count(1)
    expect(steps(page, miniature.TITLES["data/reasoning_rl"], "Failed")).to_have_count(1)
    before = left_by(pages, miniature.MADE_FIRST)

    miniature.write_questions(questions)
    page.get_by_role("button", name="Retry", exact=True).click()
    page.locator(".p-modal").get_by_role("button", name="Retry", exact=True).click()
    expect_state(page, "Completed")
    page.reload()
    open_tab(page, "Task Runs")
    for name, title in miniature.TITLES.items():
        expect(steps(page, title, "Reused")).to_have_count(1 if name in miniature.MADE_FIRST else 0)
        expect(steps(page, title, "Completed")).to_have_count(1)
    assert left_by(pages, miniature.MADE_FIRST) == before

    open_tab(page, "Artifacts")
    follow(page, page.get_by_role("link", name="rufus-lineage").first)
    follow(page, page.get_by_role("link", name="rufus-lineage").first)  # from this version to all of them
    follow(page, page.get_by_role("heading", level=6).get_by_role("link").first)  # the newest
    train, sft, reasoning = (pages.store.records(name)[0] for name in ("stages/sft/train", *STAGE_ENDS))
    base = pages.store.get(train.inputs["parent"].record_id)  # one of several in this home
    assert base is not None
    expect_lineage(page, [base, sft, reasoning])
    expect(page.get_by_text(f"file mine: {questions}")).to_be_visible()


def start_deployed(page: playwright.Page, pages: Pages, profile: Path, override: str) -> None:
    """Start the deployment `cpu` with these parameters, and open its run."""
    page.goto(f"{pages.prefect}/deployments")
    follow(page, page.get_by_role("link", name="cpu", exact=True))
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    asked = page.locator(".schema-form-property")
    asked.filter(has_text="profile (Optional)").get_by_role("textbox").fill(str(profile))
    overrides = asked.filter(has_text="overrides (Optional)").first
    expect(overrides).to_contain_text("each of the form a.b.c=VALUE")
    overrides.get_by_role("button", name="list").click()
    overrides.get_by_role("button", name="Add item").click()
    overrides.get_by_role("textbox").fill(override)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("button", name="View run").first).to_be_visible()
    open_run(page, pages, f"rufus_air on {profile.stem}", RUN_MS)  # named as it starts


def expect_state(page: playwright.Page, state: str) -> None:
    expect(page.locator(".state-badge").first).to_have_text(state, timeout=RUN_MS)


def left_by(pages: Pages, names: Iterable[str]) -> dict[str, object]:
    """What these steps' jobs wrote and when, in the store and the jobs' folders, and their only runs in MLflow."""
    titles = [miniature.TITLES[name] for name in names]
    client = MlflowClient(pages.mlflow)
    experiment = client.get_experiment_by_name("rufus_air")
    assert experiment is not None
    runs = [run.info for run in client.search_runs([experiment.experiment_id]) if run.info.run_name in titles]
    assert sorted(run.run_name for run in runs) == sorted(titles)
    folders = [pages.store.path(record) for name in names for record in pages.store.records(name)]
    folders += [folder for name in names for folder in pages.home.glob(f"jobs/{name.replace('/', '.')}.*")]
    files = [file for folder in folders for file in folder.rglob("*")]
    assert {"record.json", "handle.json"} <= {file.name for file in files}
    return {str(file): file.stat().st_mtime_ns for file in files} | {run.run_id: run.end_time for run in runs}
