"""A run's journal: what is noted in it, and at which step two runs part.

| kind | facts |
|---|---|
| `began` | `run`, `step` it goes on from, `settings`, `random` |
| `step` | `step`, `batches` (a fingerprint each), `learning_rate`, `random` after it |
| `losses` | `first` (a step), `losses` of that step and those after it |
| `logged` | `step`, `values`, `random` |
| `save` | `phase`, `checkpoint`; once published `weights`, a digest for each file of them |
| `ended` | `step`, `stopped`, `reasons`; `step` alone where an error ended the run |

Every note has `time`, in seconds of the epoch.
"""

from hexloop.domain.journal.parting import Comparison, Parting, compare
from hexloop.domain.journal.steady import SteadyJournal
from hexloop.domain.journal.timeline import Observation, Sort, Timeline, timelines

__all__ = ["Comparison", "Observation", "Parting", "Sort", "SteadyJournal", "Timeline", "compare", "timelines"]
