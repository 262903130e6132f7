"""Code written for transformers, run on hexloop: `takeover`, scripts, and checks that both libraries agree."""

from hexloop.app.takeover.replacing import Takeover, takeover

__all__ = ["Takeover", "takeover"]
