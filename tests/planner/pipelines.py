"""Random pipelines, and a slow and obvious simulation of them."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ooodist.planner.pipeline.actions import Action, Schedule, trained_from
from ooodist.planner.pipeline.costs import PipelineCosts, StageCost, equal_stages
from ooodist.planner.pipeline.named.kinds import KINDS

# Eighths: sums of them are exact, so that many things happen at exactly the same time.
EIGHTHS: SearchStrategy[float] = st.integers(0, 16).map(lambda number: number / 8)
BYTES: SearchStrategy[int] = st.integers(0, 8)


@st.composite
def stage_costs(draw: DrawFn, stages: int) -> PipelineCosts:
    """Of so many stages, all different."""
    seconds, num_bytes = (lambda: draw(EIGHTHS)), (lambda: draw(BYTES))
    return PipelineCosts(
        tuple(
            StageCost(
                *(seconds(), seconds(), seconds()),
                *(num_bytes(), num_bytes(), num_bytes(), num_bytes()),
                *(seconds(), seconds()),
                update=seconds(),
                exchange=seconds(),
                buckets=draw(st.sampled_from([1, 2, 4])),  # halves and quarters are exact as well
                exchange_cpu=seconds(),
            )
            for _ in range(stages)
        )
    )


@st.composite
def schedules(draw: DrawFn) -> Schedule:
    """Any that has a name, of up to 5 ranks and 9 micro-batches."""
    ranks, microbatches = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(list(KINDS.values())))
    chunks = draw(st.integers(1, 3)) if kind.other_chunks else kind.chunks
    return kind.make(ranks, microbatches, chunks, equal_stages(ranks * chunks))


@st.composite
def pipelines(draw: DrawFn) -> tuple[Schedule, PipelineCosts]:
    """A schedule and costs of its stages."""
    schedule = draw(schedules())
    return schedule, draw(stage_costs(schedule.stages))


@st.composite
def partly_trained(draw: DrawFn) -> tuple[Schedule, Schedule, PipelineCosts]:
    """A schedule, the same with only the later stages trained (or all), and costs of its stages."""
    schedule, costs = draw(pipelines())
    first = draw(st.integers(0, schedule.stages - 1))
    return schedule, trained_from(schedule, first), costs


def reference_ends(schedule: Schedule, costs: PipelineCosts) -> dict[Action, float]:
    """The end of each action, found by delaying everything until nothing is too early any more."""
    ends = {action: 0.0 for actions in schedule.actions for action in actions}
    arrivals: dict[Action, float] = dict.fromkeys(ends, 0.0)  # of an action's result elsewhere
    backward_stages = {stage for stage, kind, _ in ends if kind in ("I", "B")}

    def result_of(stage: int, kinds: str, microbatch: int) -> Action:
        return next(
            action
            for action in (Action(stage, kind, microbatch) for kind in kinds.split())
            if action in ends
        )

    while True:
        before = dict(ends), dict(arrivals)
        last_sent: dict[tuple[int, int], float] = {}
        for rank, actions in enumerate(schedule.actions):
            free = 0.0
            for action in actions:
                stage, kind, microbatch = action
                start = free
                if kind == "F" and stage > 0:
                    start = max(start, arrivals[Action(stage - 1, "F", microbatch)])
                if kind in ("I", "B"):
                    start = max(start, ends[Action(stage, "F", microbatch)])
                    if stage + 1 < schedule.stages:
                        start = max(start, arrivals[result_of(stage + 1, "I B", microbatch)])
                if kind == "W":
                    start = max(start, ends[Action(stage, "I", microbatch)])
                free = ends[action] = start + costs.stages[stage].seconds(kind)
                to = {"F": stage + 1, "I": stage - 1, "B": stage - 1}.get(kind, -1)
                if not 0 <= to < schedule.stages or (kind != "F" and to not in backward_stages):
                    continue
                other = schedule.rank_of[to]
                arrivals[action] = free
                if other != rank:
                    cost = costs.stages[stage]
                    seconds = cost.send_seconds if kind == "F" else cost.send_back_seconds
                    arrivals[action] = max(free, last_sent.get((rank, other), 0.0)) + seconds
                    last_sent[rank, other] = arrivals[action]
        if (ends, arrivals) == before:
            return ends


def reference_step_seconds(schedule: Schedule, costs: PipelineCosts) -> float:
    """Seconds of a step, from moment to moment: each rank exchanges one stage at a time, that which
    has waited longest."""
    ends = reference_ends(schedule, costs)
    longest = 0.0

    def tail_of(rank: int, stage: int, last: float) -> float:
        """Seconds of its W's in the tail, which are divided evenly among the buckets."""
        actions = schedule.actions[rank]
        if actions[-1].kind == "B":
            weights_only = actions[-1].stage == stage
            return costs.stages[stage].weight_gradient if weights_only else 0.0
        others = [at for at, action in enumerate(actions) if action.kind != "W"]
        own = [action for action in actions[others[-1] + 1 :] if action.stage == stage]
        began = min(
            (ends[action] - costs.stages[stage].weight_gradient for action in own), default=last
        )
        return last - began

    for rank, actions in enumerate(schedule.actions):
        done: dict[int, float] = {}
        for action in actions:
            if action.kind in ("W", "B"):
                done[action.stage] = max(done.get(action.stage, 0.0), ends[action])
        now = max((ends[action] for action in actions), default=0.0)
        lane = 0.0
        for at, stage in sorted((at, stage) for stage, at in done.items()):
            cost = costs.stages[stage]
            if cost.exchange:
                tail = tail_of(rank, stage, at)
                begun = at - tail + tail / cost.buckets
                whole = max(lane, begun) + cost.exchange
                # W's run beside all sums but the last one, and lose no more than either takes.
                lost = min(cost.exchange_cpu, cost.exchange, tail)
                at += lost - lost / cost.buckets
                lane = max(whole, at + cost.exchange / cost.buckets)
        update = sum(
            costs.stages[stage].update
            for stage, own in enumerate(schedule.rank_of)
            if own == rank and stage >= schedule.first_trained
        )
        longest = max(longest, max(now, lane) + update)
    return longest
