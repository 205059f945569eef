return with_use({A.id}, {'ok'})
