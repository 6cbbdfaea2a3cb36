from sluice.app import main

main()
