"""Work on several CUDA streams, correctly: batches that arrive ahead of the loop, stages, parallel branches."""
