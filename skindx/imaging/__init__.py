"""What an image is: strict decoding within limits, formats, hashes, thumbnails."""
