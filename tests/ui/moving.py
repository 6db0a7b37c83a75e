"""A source that shows other facts at every look, for a terminal that cannot keep up."""

from tests.ui import builders
from tests.ui.changed import replace

LAST = 60
INTERVAL_S = 0.005


class Moving(builders.FakeSource):
    """Every look has other facts, until the last one. It counts its looks."""

    def __init__(self, told=None, looks=0):
        super().__init__(builders.live(*builders.hang(64)).shown)
        self.told, self.looks = told, looks

    def look(self):
        self.looks += 1
        if self.told and self.looks <= LAST + 20:
            print(self.looks, file=self.told, flush=True)
        number = min(self.looks, LAST)
        snapshot = self.shown.snapshot
        ranks = tuple(
            replace(
                rank,
                progress={"iteration": (number * 7919 + rank.rank * 31) % 99_999},
                process={"cpu_ratio": (number * 7 + rank.rank) % 100 / 100},
            )
            for rank in snapshot.ranks
        )
        return replace(self.shown, snapshot=replace(snapshot, ranks=ranks, iteration=number))
