"""Make an environment whose set-up was killed fit to go on from: drop_unfinished.py SITE_PACKAGES

An installer that is killed leaves a package half copied. Its `.dist-info` may be there already, and then
the next run takes the package for installed. Here each package must have all files that its RECORD lists;
the `.dist-info` of any other is removed, so that it is installed again, over what is there. Takes half a
second for a hundred packages.
"""

import csv
import shutil
import sys
from pathlib import Path


def whole(info: Path) -> bool:
    try:
        with (info / "RECORD").open(encoding="utf-8", newline="") as record:
            names = [row[0] for row in csv.reader(record) if row]
        return (info / "INSTALLER").exists() and all(
            (info.parent / name).exists() for name in names if not name.endswith(".pyc")
        )
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


for found in sorted(Path(sys.argv[1]).glob("*.dist-info")):
    if not whole(found):
        shutil.rmtree(found)
        print(f"  once more, because it was interrupted: {found.name.partition('-')[0]}", file=sys.stderr)
