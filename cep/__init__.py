"""Complex event processing for fraud rules. Start at README.md; the floors are drawn in cep/README.md."""

__version__ = "0.2.0"
