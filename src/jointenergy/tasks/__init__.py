"""tasks: functions on models and kernels: predict, rank, detect, score, sample, complete, refine, convert, compose."""
