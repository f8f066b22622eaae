"""Costs as YAML and back."""

from __future__ import annotations

import pytest
from hypothesis import given

from ooodist.errors import UserError
from ooodist.planner.costs import Network, StepCosts
from ooodist.util import strict_yaml, yaml_dataclass
from tests.planner import instances
from tests.planner.chains import chain_costs


@given(instances.step_costs(instances.ANY))
def test_costs_survive_yaml(costs: StepCosts) -> None:
    text = yaml_dataclass.dump(costs)
    assert yaml_dataclass.read(StepCosts, strict_yaml.parse(text, "test")) == costs


@given(instances.networks(instances.ANY))
def test_networks_survive_yaml(network: Network) -> None:
    text = yaml_dataclass.dump(network)
    assert yaml_dataclass.read(Network, strict_yaml.parse(text, "test")) == network


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{engine: any, workers: 0}", "workers is 0; it must be .* at least 1"),
        ("{engine: any, workers: 2, latency: -1.0}", "latency is -1.0"),
        ("{engine: any, workers: 2, latencies: 1.0}", "did you mean latency?"),
    ],
)
def test_refuses_wrong_networks(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        yaml_dataclass.read(Network, strict_yaml.parse(text, "test"))


def test_compute_seconds_are_of_units_middle_and_updates() -> None:
    costs = chain_costs([4, 4], forward=1.0, output_gradient=2.0, weight_gradient=4.0, update=8.0)
    assert costs.compute_seconds == 2 * 1 + 2 + 2 * 4 + 2 * 8
