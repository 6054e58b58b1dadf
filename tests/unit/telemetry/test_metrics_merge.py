"""Pages of several workers, made into one."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from headgate.telemetry.metrics_merge import merge_pages
from tests.metrics_page import service_metrics


def test_each_sample_of_each_worker_is_there_once_with_its_name(tmp_path: Path) -> None:
    with service_metrics(tmp_path) as metrics:
        page, _ = metrics.render()
    whole = merge_pages({"0": page, "1": page}).decode()
    once = [(s.name, s.labels, s.value) for family in parse_text(page.decode()) for s in family.samples]
    both = [(s.name, s.labels, s.value) for family in parse_text(whole) for s in family.samples]
    for worker in ("0", "1"):
        of_it = [(n, {k: v for k, v in ls.items() if k != "worker"}, x) for n, ls, x in both if ls["worker"] == worker]
        assert sorted(of_it, key=str) == sorted(once, key=str)
    assert len(both) == 2 * len(once)


def test_families_are_described_once_and_stay_together(tmp_path: Path) -> None:
    with service_metrics(tmp_path) as metrics:
        page, _ = metrics.render()
    whole = merge_pages({"0": page, "1": page}).decode().splitlines()
    described = [line for line in whole if line.startswith("#")]
    assert len(described) == len(set(described)) == sum(line.startswith("#") for line in page.decode().splitlines())


def test_openmetrics_ends_once(tmp_path: Path) -> None:
    with service_metrics(tmp_path) as metrics:
        page, _ = metrics.render("application/openmetrics-text")
    whole = merge_pages({"0": page, "1": page}).decode()
    assert whole.count("# EOF") == 1
    assert {sample.labels["worker"] for family in parse_openmetrics(whole) for sample in family.samples} == {"0", "1"}  # type: ignore[no-untyped-call]


def test_a_family_that_only_some_workers_have() -> None:
    one = b"# HELP a A.\n# TYPE a gauge\na 1.0\n"
    two = b'# HELP b B.\n# TYPE b gauge\nb{x="}"} 2.0\n# HELP a A.\n# TYPE a gauge\na{} 3.0\n'
    assert merge_pages({"0": one, "1": two}).decode() == (
        '# HELP a A.\n# TYPE a gauge\na{worker="0"} 1.0\na{worker="1"} 3.0\n'
        '# HELP b B.\n# TYPE b gauge\nb{worker="1",x="}"} 2.0\n'
    )


def test_a_line_that_was_cut_off_is_left_out() -> None:
    page = '# TYPE a gauge\na{x="ä"} 1.0\na{x="ö"} 2.0\n'.encode()
    for length in range(len(page)):
        whole = merge_pages({"0": page[:length]}).decode()
        assert [sample.value for family in parse_text(whole) for sample in family.samples] == [1.0, 2.0][
            : whole.count("a{")
        ]
    assert "ö" not in merge_pages({"0": page[:-8]}).decode()


def test_no_pages_make_an_empty_one() -> None:
    assert merge_pages({}) == b""


@pytest.mark.parametrize("page", [b"a 1.0\n", b"# TYPE a gauge\n<html>\n"])
def test_what_is_no_page_is_named(page: bytes) -> None:
    with pytest.raises(ValueError, match="metrics of worker 3"):
        merge_pages({"3": page})
