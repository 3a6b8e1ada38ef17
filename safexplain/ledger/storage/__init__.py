"""safexplain.ledger.storage."""
