"""The KV cache of one engine: blocks in use, and blocks that are idle and remembered by LRU.

Block by block the rules are vLLM's: a block is found by a name that covers everything before it, counts its users, is idle
when the last of them has left, and is forgotten when its place is needed, whoever was idle longest first; of blocks that became
idle together, a prompt's end goes before its beginning. Two consequences make it cheap: whoever uses a block of a text uses all
blocks before it, and so does whoever remembers it. Users of a text therefore differ only in how far they reach, and what is
idle of it is a few stretches, the later ones idle for longer. Nothing here depends on how many blocks a stretch has.
"""

from __future__ import annotations

from collections import OrderedDict

from simulator.engine.prefix import BlockKey, Piece


class Holding:
    """The blocks of a prompt, from the first on, that one sequence uses by name. Made empty; `BlockPool` changes it."""

    __slots__ = ("blocks", "named_blocks", "offset", "piece", "pieces")

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces  # the texts, as far as they have names ...
        self.named_blocks = sum(length for _, length in pieces)  # ... and their blocks
        self.blocks = 0
        self.piece = 0  # where it ends: the text ...
        self.offset = 0  # ... and how many of its blocks

    def __repr__(self) -> str:
        return f"<Holding {self.blocks} of {self.named_blocks} blocks>"


class _Stretch:
    """Neighbouring blocks of a text that became idle together: those from ``start`` to before ``end``."""

    __slots__ = ("end", "name", "start")

    def __init__(self, name: BlockKey, start: int, end: int) -> None:
        self.name = name
        self.start = start
        self.end = end


class _Text:
    """What the cache knows of one text: its first ``cached`` blocks, of which the first ``held`` are in use."""

    __slots__ = ("cached", "held", "idle", "reaches")

    def __init__(self) -> None:
        self.cached = 0
        self.held = 0
        self.reaches: dict[int, int] = {}  # how far users reach: how many
        self.idle: list[_Stretch] = []  # from the end of the text to what is held; the first is idle for longest


class BlockPool:
    """So many blocks: unnamed ones in use, named ones in use, and idle ones.

    A block in use is unnamed until it is full and computed; then it gets its name, unless there is one of that name already:
    then that one is used instead. (vLLM keeps both until their users leave.)
    """

    __slots__ = ("_anonymous", "_idle", "_known", "_stretches", "_texts", "_unnamed", "capacity", "named")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a KV cache needs at least one block, got {capacity}")
        self.capacity = capacity
        self.named = 0  # blocks that got a name, ever
        self._texts: dict[BlockKey, _Text] = {}
        self._stretches: OrderedDict[_Stretch, None] = OrderedDict()  # idle for longest first
        self._known = 0  # named blocks, idle ones included
        self._idle = 0
        self._unnamed = 0
        self._anonymous = 0

    def __repr__(self) -> str:
        return f"<BlockPool {self.used} used, {self._idle} idle, of {self.capacity}>"

    @property
    def used(self) -> int:
        """Blocks that sequences hold; idle cached blocks do not count."""
        return self._known - self._idle + self._unnamed

    @property
    def idle(self) -> int:
        """Blocks that nobody holds and that are still found by name."""
        return self._idle

    @property
    def free(self) -> int:
        """Blocks that can be had, those of idle blocks included."""
        return self.capacity - self._known + self._idle - self._unnamed

    def find(self, pieces: list[Piece], most: int) -> int:
        """How many of the first ``most`` blocks of these texts are there, from the first on and without a gap."""
        found = 0
        for name, length in pieces:
            text = self._texts.get(name)
            if text is None:
                break
            found += min(text.cached, length)
            if text.cached < length or found >= most:
                break
        return min(found, most)

    def missing(self, pieces: list[Piece], found: int, fresh: int) -> int:
        """How many blocks are lacking to use the first ``found`` blocks, which are there, and ``fresh`` new ones."""
        woken = 0
        for name, length in pieces:
            if found <= 0:
                break
            woken += max(0, min(length, found) - self._texts[name].held)
            found -= length
        return max(0, woken + fresh - self.free)

    def hold(self, holding: Holding, count: int) -> None:
        """Use the next ``count`` blocks, which are there."""
        self._reach(holding, count)

    def take(self, count: int) -> bool:
        """Use so many unnamed blocks. False, and nothing happens, if they cannot be had."""
        excess = self._known + self._unnamed + count - self.capacity
        if excess > 0:
            if excess > self._idle:
                return False
            self._forget(excess)
        self._unnamed += count
        return True

    def name(self, holding: Holding, count: int) -> int:
        """Name the next ``count`` blocks, which its sequence uses without a name. Returns how many were not there yet."""
        lacking = holding.blocks + count - holding.named_blocks
        if lacking > 0:  # text that nobody will ask for
            self._anonymous -= 1
            holding.pieces.append((self._anonymous, lacking))
            holding.named_blocks += lacking
        before = self._known
        self._reach(holding, count)
        self._unnamed -= count
        self.named += self._known - before
        return self._known - before

    def give_back(self, holding: Holding, unnamed: int) -> None:
        """Use nothing of this holding any more, nor so many unnamed blocks, which are free at once."""
        self._unnamed -= unnamed
        texts, pieces = self._texts, holding.pieces
        if holding.offset:
            self._let_go(pieces[holding.piece][0], holding.offset)
        for place in range(holding.piece - 1, -1, -1):
            name, length = pieces[place]
            reaches = texts[name].reaches
            if reaches[length] > 1:
                reaches[length] -= 1
            else:
                self._let_go(name, length)
        holding.blocks = holding.piece = holding.offset = 0

    def forget(self) -> bool:
        """Drop all names. False, and nothing happens, while blocks are in use."""
        if self.used:
            return False
        self._texts.clear()
        self._stretches.clear()
        self._known = self._idle = 0
        return True

    def _reach(self, holding: Holding, count: int) -> None:
        """Use the next ``count`` blocks by name, and make those of them that are not there."""
        texts, pieces, place, start = self._texts, holding.pieces, holding.piece, holding.offset
        holding.blocks += count
        while count:
            name, length = pieces[place]
            text = texts.get(name)
            if text is None:
                text = texts[name] = _Text()
            end = start + count
            if end >= length:
                end = length
                place += 1
            reaches = text.reaches
            if start:
                if reaches[start] == 1:
                    del reaches[start]
                else:
                    reaches[start] -= 1
            reaches[end] = reaches.get(end, 0) + 1
            if end > text.held:
                if text.idle:
                    self._wake(text, end)
                text.held = end
                if end > text.cached:
                    self._known += end - text.cached
                    text.cached = end
            count -= end - start
            start = 0 if end == length else end
        holding.piece, holding.offset = place, start

    def _wake(self, text: _Text, end: int) -> None:
        """Idle blocks before ``end`` are in use again."""
        idle = text.idle
        while idle and idle[-1].start < end:
            stretch = idle[-1]
            if stretch.end <= end:
                self._idle -= stretch.end - stretch.start
                del self._stretches[idle.pop()]
            else:
                self._idle -= end - stretch.start
                stretch.start = end

    def _let_go(self, name: BlockKey, end: int) -> None:
        """A user who reached so far has left."""
        text = self._texts[name]
        reaches = text.reaches
        if reaches[end] > 1:
            reaches[end] -= 1
            return
        del reaches[end]
        if end < text.held:
            return
        text.held = held = max(reaches) if reaches else 0
        stretch = _Stretch(name, held, end)
        text.idle.append(stretch)
        self._stretches[stretch] = None
        self._idle += end - held

    def _forget(self, count: int) -> None:
        """So many idle blocks, those idle for longest first."""
        self._known -= count
        self._idle -= count
        while count:
            stretch = next(iter(self._stretches))
            text = self._texts[stretch.name]
            going = min(count, stretch.end - stretch.start)
            stretch.end -= going
            text.cached -= going
            count -= going
            if stretch.end == stretch.start:
                del self._stretches[stretch]
                del text.idle[0]
                if not text.cached:
                    del self._texts[stretch.name]
