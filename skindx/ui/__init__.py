"""The Gradio page over `diagnosis`."""
