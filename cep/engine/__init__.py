"""The pure core. `advance(program, keyed_state, batch, watermark_ms)`: no clock, no I/O."""
