"""The first hour: a look at a folder of images, first files and estimates, where a run stands."""
