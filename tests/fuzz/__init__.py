"""The coverage-guided fuzzer: `make fuzz`, for as long as asked."""
