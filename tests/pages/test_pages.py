"""What a user sees in the pages of `rufus ui`, in a real browser. Waits are for what is shown."""

from __future__ import annotations

import pytest

from tests.flows.test_recipe import TITLES
from tests.pages.conftest import Pages, playwright

pytestmark = pytest.mark.slow

expect = playwright.expect


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


def test_a_flow_run_shows_its_steps(page: playwright.Page, pages: Pages) -> None:
    page.goto(f"{pages.prefect}/runs")
    page.get_by_role("link", name="tiny on test").first.click()
    page.get_by_text("Task Runs", exact=True).click()
    for title in TITLES:
        expect(page.get_by_text(title).first).to_be_visible()
    expect(page.get_by_text("Completed").first).to_be_visible()
