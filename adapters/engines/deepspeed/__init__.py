"""DeepSpeed's engine, with ZeRO stages 0 to 3."""
