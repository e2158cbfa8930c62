# Packing text and token files; the order is that of the names.
mkdir -p tree/sub tree/.git
printf 'bb' >tree/b.txt
printf 'a' >tree/a.txt
printf 'ccc' >tree/sub/c.txt
printf '' >tree/empty.txt
printf 'x' >tree/.git/x
printf 'no' >tree/no.bin
ln -s a.txt tree/link.txt
megac data pack tree --include '*.txt' -o tree/all
megac data info tree/all
od -An -tu2 tree/all.bin
megac data pack tree --include '*.txt' -o tree/all --append-eod --json
od -An -tu2 tree/all.bin
megac data pack tree --exclude 'sub/*' --exclude '*.bin' --exclude '*.idx' \
    --dtype uint8 -o tree/all.idx
od -An -tu1 tree/all.bin
printf '1 22\n333\n' >ids
megac data pack ids --tokens ids -o ids
od -An -td4 ids.bin
megac data verify ids --vocab-size 334 --json
printf '\001\000\000\001' >raw
megac data pack raw --tokens uint16 -o raw
od -An -tu2 raw.bin
megac data pack raw --tokens int32 -o raw --append-eod=7
od -An -td4 raw.bin
