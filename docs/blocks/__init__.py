"""What stands in each rendered block: tables and sentences out of docs/measured/*.json."""
