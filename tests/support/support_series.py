"""What a program's `/metrics` says, read by prometheus-client's own parsers."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer: name and labels of each sample -> its value."""

    samples: dict[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float:
        """The one sample with exactly these labels; KeyError where there is none."""
        return self.samples[name, frozenset(labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """The sum over every sample of that name that has at least these labels."""
        wanted = labels.items()
        return sum(value for (each, own), value in self.samples.items() if each == name and wanted <= set(own))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The samples of that name summed by one label, without zeros."""
        sums: dict[str, float] = {}
        for (each, own), value in self.samples.items():
            if each == name and value:
                key = dict(own)[label]
                sums[key] = sums.get(key, 0) + value
        return sums

    def num_series(self) -> dict[str, int]:
        """How many samples each name has."""
        counts: dict[str, int] = {}
        for name, _ in self.samples:
            counts[name] = counts.get(name, 0) + 1
        return counts


def scrape_of(text: str) -> Scrape:
    """Read the text format, or OpenMetrics where it ends as that does."""
    read = read_openmetrics if text.endswith("# EOF\n") else read_text
    return Scrape({(s.name, frozenset(s.labels.items())): s.value for family in read(text) for s in family.samples})
