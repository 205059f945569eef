-- Keeps the slots `held`, and frees those that are `released`. A Redis that had lost slots learns of
-- them so.
release(A.released)
for _, slot in ipairs(A.held) do hold(slot[1], slot[2]) end
return {}
