"""Methods of training that few people need, as kinds of skindx's families and hooks of its loop."""
