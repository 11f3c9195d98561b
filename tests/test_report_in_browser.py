"""The page in a real Chromium, where there is one: it asks for nothing, and answers to clicks and to the pointer."""

import pytest

from support.reporting import call

pytest.importorskip("plotly")
SCHEMES = {1200: "light", 400: "dark"}


@pytest.fixture(scope="module")
def address(train_toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("far", "baseline"):
        train_toy(folder / method, method)
    assert call("report", folder / "far", folder / "baseline", "--out", folder / "page.html") == 0
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="module", params=SCHEMES)
def page(request, browser, address):
    """The page at a width, with what it asked for and complained of."""
    context = browser.new_context(viewport={"width": request.param, "height": 800}, color_scheme=SCHEMES[request.param])
    opened = context.new_page()
    opened.asked, opened.complaints = [], []
    opened.on("request", lambda asked: opened.asked.append(asked.url))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("console", lambda said: opened.complaints.append(said.text) if said.type == "error" else None)
    opened.goto(address)
    opened.wait_for_function("document.querySelectorAll('.chart .main-svg').length > 0")
    yield opened
    context.close()


def test_nothing_is_asked_for_and_nothing_fails(page, address):
    assert {url for url in page.asked if not url.startswith("data:")} == {address}
    assert page.complaints == []


def test_no_button_of_a_chart_sends_anything_away(page):
    titles = page.locator(".modebar-btn").evaluate_all("all => [...new Set(all.map(b => b.dataset.title))]")
    assert sorted(titles) == ["Download plot as a PNG", "Pan", "Reset axes", "Zoom"]
    assert page.evaluate("[...document.querySelectorAll('.chart')].every(c => c._context.plotlyServerURL === '')")


def test_every_chart_is_drawn_and_the_page_fits_its_width(page):
    assert page.locator(".chart").count() == page.locator(".chart:has(.main-svg)").count() > 10
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#run-1-gates").count() == 1
    assert page.locator("#run-2-gates").count() == 0
    assert page.locator("img").evaluate_all("all => all.every(i => !i.src || i.loading == 'lazy' || i.naturalWidth)")


def test_the_ground_follows_the_readers_scheme(page):
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    wide = page.viewport_size["width"] == 1200
    assert (ground == "rgb(255, 255, 255)") == wide
    ink = page.evaluate("document.querySelector('.chart').layout.font.color")
    assert (ink == "#1d2329") == wide


def test_a_click_on_a_legend_hides_a_line(page):
    chart = page.locator("#run-1 .chart").first
    chart.scroll_into_view_if_needed()
    chart.locator(".legendtoggle").first.click()
    page.wait_for_function("document.querySelector('#run-1 .chart').data[0].visible === 'legendonly'")


def test_a_point_shows_its_image_and_colours_switch(page):
    chart = page.locator("#run-1-tsne ~ .chart").first
    point = chart.locator(".scatterlayer .point").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
    page.wait_for_selector("#hovered:not([hidden]) img[src^='data:image/jpeg']")
    assert "predicted" in page.locator("#hovered p").inner_text()
    page.locator("#run-1-tsne ~ .switch button", has_text="class").first.click()
    assert {"across", "down", "square"} <= set(chart.locator(".legendtext").all_text_contents())


def test_a_click_on_a_column_sorts_by_it(page):
    table = page.locator("#run-1 table.sortable").first
    head = table.locator("th button").nth(2)
    for order in ("descending", "ascending"):
        head.click()
        assert table.locator("th").nth(2).get_attribute("aria-sort") == order
        shown = [float(text.rstrip("%")) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]
        assert shown == sorted(shown, reverse=order == "descending")
