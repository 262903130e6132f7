"""The test kit behind `hexloop.testing`: a simulated run, checks of exact resumes, and the contract suites."""
