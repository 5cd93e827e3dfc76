"""Images: strict decoding within limits, formats, hashes, thumbnails."""
