"""The W's of a tail run bucket by bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ooodist.pipeline.runtime.final_weight_gradients import parts_by_action
from ooodist.planner.pipeline.actions import Action, Kind, from_csv, tail_of


@given(
    st.lists(st.tuples(st.sampled_from([0, 2]), st.integers(0, 9)), unique=True),
    st.integers(1, 4),
)
def test_a_tail_runs_part_by_part(tail: list[tuple[int, int]], number: int) -> None:
    """Stage 0's W has so many parts; stage 2's W stays as it is."""
    actions = [Action(stage, Kind.W, microbatch) for stage, microbatch in tail]
    found = parts_by_action(actions, {0: number})
    own = [action for action in actions if action.stage == 0]
    assert list(found) == own
    calls = [call for action in own for call in found[action]]
    microbatches = [action.microbatch for action in own]
    # Each part has the micro-batches in the schedule's order, so accumulators have them as well.
    assert calls == [(each, part) for part in range(number) for each in microbatches]
    assert all(len(each) == number for each in found.values())


def test_two_stages_keep_their_places() -> None:
    """By hand: stage 0 in two parts, stage 1 in three, between each other."""
    (actions,) = from_csv("0F0,1F0,0F1,1F1,1I0,1I1,0I0,0I1,1W0,0W0,1W1,0W1\n", "x").actions
    found = parts_by_action(tail_of(actions), {0: 2, 1: 3})
    assert [found[action] for action in actions[-4:]] == [
        [(0, 0), (1, 0), (0, 1)],
        [(0, 0), (1, 0)],
        [(1, 1), (0, 2), (1, 2)],
        [(0, 1), (1, 1)],
    ]


def test_what_a_tail_is() -> None:
    def tail(text: str) -> str:
        (actions,) = from_csv(text, "x").actions
        return ",".join(map(str, tail_of(actions)))

    assert tail("0F0,0F1,0I0,0W0,0I1,0W1\n") == "0W1"
    assert tail("0F0,0F1,0I0,0I1,0W1,0W0\n") == "0W1,0W0"
    assert tail("0F0,0F1,0B0,0B1\n") == "0B1"
    assert tail("0F0\n") == ""
