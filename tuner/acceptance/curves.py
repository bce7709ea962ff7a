"""What is known of one drafter in one context, as values that others read."""

from dataclasses import dataclass

from policies.cycle_policy import Outlook, Survival


@dataclass(frozen=True, slots=True)
class Curve:
    """What is known of one drafter in one context. Every tuple over positions has `MAX_BLOCK_LENGTH` entries."""

    survival: Survival
    """S_j by confidence bucket; all zeros for bucket 0, in which nothing is proposed."""
    shares: tuple[float, ...]
    """Share of each bucket among the blocks, bucket 0 included; they sum to 1."""
    unconditioned: tuple[float, ...]
    """S_1, S_2, ... over all blocks, silent ones included, as they started when they were logged."""
    offered: tuple[float, ...]
    """O_1, O_2, ...: the share of blocks in which at least j tokens are proposed if that many are requested."""
    emitted: tuple[float, ...]
    """E(0), E(1), ...: tokens a cycle if every block had that length: blocks start where they then would, and the end
    of a request cuts its last one. E(0) is 1, and none is smaller than the one before."""
    low: tuple[float, ...]
    """Lower end of the 95 % interval of `unconditioned`."""
    high: tuple[float, ...]
    """Upper end of the 95 % interval of `unconditioned`."""
    emitted_low: tuple[float, ...]
    """Lower end of the 95 % interval of `emitted`."""
    emitted_high: tuple[float, ...]
    """Upper end of the 95 % interval of `emitted`."""
    blocks: float
    """Blocks that this rests on, faded ones counted in part, without what was borrowed from relatives."""

    def outlook(self) -> Outlook:
        """What a block is expected to bring, for deciding how much to draft.

        Its survival is the growth of `emitted`, with 1 + S_1 + ... + S_K = E(K) wherever E is concave. Where a longer
        block adds more than a shorter one, the positions share the growth equally (pool adjacent violators), since a
        survival never rises.
        """
        levels: list[tuple[float, int]] = []
        for before, after in zip(self.emitted, self.emitted[1:], strict=False):
            gain, width = min(max(after - before, 0.0), 1.0), 1
            while levels and levels[-1][0] < gain:
                level, positions = levels.pop()
                gain = (gain * width + level * positions) / (width + positions)
                width += positions
            levels.append((gain, width))
        survival = tuple(level for level, positions in levels for _ in range(positions))
        return Outlook(survival, self.offered)
