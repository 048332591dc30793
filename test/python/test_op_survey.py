"""Every op that torch can differentiate, as torch's own list has them: it trains at the smallest budget to the same
bits, or it is on the list of what is refused, in words that name its line."""

import re
import warnings

import op_survey
import pytest
import recals
import torch

REFUSED: dict[str, str] = {
    "_unsafe_masked_index": "called by compilers alone",
    "_unsafe_masked_index_put_accumulate": "called by compilers alone",
    "index_put": "the derivative by the values picks what a mask says",
    "masked_select": "its shape is data",
    "narrow": "a start that is a tensor",
    "tensor_split": "places that are a tensor",
}
"""Ops some of whose samples cannot be planned, and why. The list may only become shorter."""

WORDS = re.compile(r"recals: .*aten::\w+ at \S+:\d+,? (depends|has no form|failed|reads|returns|takes)")
FOREIGN = re.compile(r"fake impl|PT2|Meta tensor|FakeTensor|torch\.compile")


def attempts(info: object) -> tuple[int, set[str], list[str]]:
    """How many samples were planned, the refusals, and what is wrong."""
    planned, refusals, wrong = 0, set(), []
    for eager, trace in op_survey.steps(info):
        try:
            budgeted = recals.optimize(trace, (torch.ones(()),), "min")
        except recals.RecalsError as error:
            text = str(error).splitlines()[0]
            refusals.add(text)
            if not WORDS.search(text) or FOREIGN.search(text):
                wrong.append(f"in whose words? {text}")
            continue
        planned += 1
        if not op_survey.same(op_survey.trained(eager), op_survey.trained(budgeted)):
            wrong.append("other bits")
    return planned, refusals, wrong


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_differentiable_op() -> None:
    planned, refused, wrong = 0, {}, {}
    for info in op_survey.infos():
        name = op_survey.name_of(info)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count, refusals, faults = attempts(info)
        planned += count
        if refusals:
            refused[name] = refusals
        if faults:
            wrong[name] = faults
    assert wrong == {}
    assert refused.keys() == REFUSED.keys(), refused
    assert planned > 800
