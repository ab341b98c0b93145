#!/usr/bin/env bash
# source.sh NAME REPOSITORY COMMIT: a checkout of COMMIT in ./NAME, with patches/NAME/*.patch on top, in order.
# The whole hash goes into ./commits, so that an image tells what a short one was on the day of its build.
set -euo pipefail
name=$1 repository=$2 commit=$3
git clone --quiet --filter=blob:none --no-checkout "$repository" "$name"
git -C "$name" checkout --quiet --detach "$commit"
echo "$name $(git -C "$name" rev-parse HEAD)" >> commits
for patch in "$PWD/patches/$name"/*.patch; do
  [[ -e $patch ]] || continue
  git -C "$name" apply --index "$patch"
  echo "$name $(sha256sum "$patch" | cut -d' ' -f1) $(basename "$patch")" >> commits
done
git -C "$name" submodule --quiet update --init --recursive
