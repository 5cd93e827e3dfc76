from skindx.core.startup import heed_interrupts


def main() -> None:
    """Run the lab, which Ctrl-C ends also while it is being imported."""
    heed_interrupts()
    from skindx_bench.cli import main as run

    run()


if __name__ == "__main__":
    main()
