from skindx.cli import main

main()
