"""Results of benchmarks, with samples that somebody made up."""

from bench import measure
from bench.questions import QUESTIONS
from bench.results import Results

ABOUT = {
    "subject": "jaxexp",
    "versions": "jax 0.12.0.1",
    "jax": "0.12.0.1",
    "machine": "a machine",
    "load average": "0.00",
    "file system": "ext4",
    "date": "2027-01-01",
}
QUESTION = {question.name: question for question in QUESTIONS}


def results_of(cells, **about):
    """Results with the given samples: {(question, case): {rival: samples}}."""
    results = Results({**ABOUT, **about})
    for (question, case), rivals in cells.items():
        unit = QUESTION[question].unit if question in QUESTION else "byte"
        for rival, samples in rivals.items():
            place = {"question": question, "case": case, "rival": rival, "unit": unit}
            results.add(measure.benchmark(f"{question}/{case}/{rival}", samples, place))
    return results
