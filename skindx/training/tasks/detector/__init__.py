"""The lesion detector: ultralytics' models and losses, trained by our own loop on all ranks."""
