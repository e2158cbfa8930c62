# Bad input: exit code 1, the file and the place, nothing half-written.
megac data pack missing -o out
mkdir empty
megac data pack empty -o out
printf '' >nothing
megac data pack nothing -o out
printf '1 2\n3 x\n' >ids
megac data pack ids --tokens ids -o out
printf '1\n70000\n' >ids
megac data pack ids --tokens ids --dtype uint16 -o out
printf '99999999999\n' >ids
megac data pack ids --tokens ids -o out
printf 'abc' >odd
megac data pack odd --tokens uint16 -o out
megac data pack odd -o nowhere/out
ln -s /dev/full full.bin.tmp
megac data pack odd -o full
ls
printf 'hello' >text
megac data pack text -o good
megac data verify good --vocab-size 110
printf '!' >>good.bin
megac data info good
megac data verify good
head -c 40 good.idx >cut.idx
cp good.bin cut.bin
megac data info cut good
megac data info gone --json
