"""Run work on several CUDA streams: batches that arrive ahead of the loop, stages, parallel branches."""
